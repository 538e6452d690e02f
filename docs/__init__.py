"""The documentation: pages in Markdown, and `python -m docs`, which makes a site of them."""
