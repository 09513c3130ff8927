"""CBDLO with CRAWL and CDM: attribute trees over an unstructured overlay."""
