"""What can be known of the effects without training or sampling."""
