"""Deletes what no state contains while this is still possible. It runs when a resource of `components.drain` is
deleted.

`entry` starts a task, `steps` has its steps (cluster, account and clock are passed in), `kinds` lists the kinds of
objects, `cluster_api` and `account_api` make the calls. No Pulumi: `components.drain` has the resources.
"""
