"""Stand-in for the Pulumi AWS plugin: the same tokens and properties, served by API calls to the local cloud."""
