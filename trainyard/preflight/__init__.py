"""Check an AWS account before a stack is deployed: `python -m trainyard.preflight --stack NAME`."""
