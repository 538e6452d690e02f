"""The documentation: pages in Markdown, and `python -m docs`, which builds a site from them."""
