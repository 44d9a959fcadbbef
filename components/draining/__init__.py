"""Deletes what no state contains while this is still possible. It runs when a resource of `components.drain` is
deleted.

`steps` and `remains` decide (no I/O: cluster, account and clock are passed in), `kinds` lists the kinds of
objects, `cluster_api` and `account_api` make the calls, `entry` connects them. No Pulumi: `components.drain`
has the resources.
"""
