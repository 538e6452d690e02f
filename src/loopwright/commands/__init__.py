"""The commands of the command line, by what they do. None imports TensorFlow before it trains."""
