"""Reports that people open: what a page shows of a comparison or a recording, as plain data, and the pages."""
