"""What a call is: its tensors and plain values, its place, its context, its gradients."""
