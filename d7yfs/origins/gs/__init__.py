"""Google Cloud Storage, over its JSON and XML APIs."""
