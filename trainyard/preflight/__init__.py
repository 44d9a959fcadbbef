"""What the account must have before a stack is deployed: asked by `python -m trainyard.preflight --stack NAME`."""
