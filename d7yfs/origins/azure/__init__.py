"""Azure Blob Storage, over its REST interface."""
