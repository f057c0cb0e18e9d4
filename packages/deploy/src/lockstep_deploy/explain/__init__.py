"""Which parts of an input a trained model's answer rests on, and where two models differ in that."""
