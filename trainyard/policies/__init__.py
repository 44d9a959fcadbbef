"""What every stack must keep to, whatever its stack file says: rules, each judged on resources as they will be made.

The rules are pure: they need neither Pulumi nor an account. `python -m trainyard.policies.judge` judges a stored
preview or state, `pulumi preview --policy-pack trainyard/policies` runs them inside the engine (`__main__.py`).
"""
