"""Recording a running training."""
