"""Versions as deployments of Ray Serve: placed on the nodes of a cluster, scaled and begun again by Ray."""
