"""The parts that all experiments share: command line, devices, run loop, progress."""
