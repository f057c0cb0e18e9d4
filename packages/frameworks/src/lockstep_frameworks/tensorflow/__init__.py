"""Recording TensorFlow 2: eager code, functions, Keras 3, custom loops and replicas."""
