"""Giving back what a stack's own state does not name, while that is still possible. Runs when a resource is deleted.

`steps` and `remains` decide (no I/O: cluster, account and clock are passed in), `kinds` says what is looked at,
`cluster_api` and `account_api` do the calls, `entry` puts them together. No Pulumi: `components.drain` has the
resources.
"""
