"""The API of TorchrunJobs and TorchrunQueues. Each field is declared once, for schema, default, page and parser.

`job.py` and `queue.py` declare the specs, `status.py` the statuses, with the field types of `fields.py`. `crd.py`
builds crd/ and docs/torchrun-fields.md. `resolve.py` merges the overrides of a job into its queue.
"""
