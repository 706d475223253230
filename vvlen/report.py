def write(workdir): pass
