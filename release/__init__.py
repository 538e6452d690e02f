"""What has to hold before a version is released: `python -m release`. Nothing is uploaded."""
