"""EKS: clusters with a control plane of their own, node groups of EC2 instances, access entries, add-ons.

moto's EKS makes records only and lacks add-ons, access entries, updates and versions; this one takes its routing
and its place in the server (`responses.install`), and keeps its own state (`store`).
"""
