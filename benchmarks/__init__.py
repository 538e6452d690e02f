"""Speed, growth, memory, start-up and tuning, measured on this machine: `make bench`."""
