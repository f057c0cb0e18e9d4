"""Noise or fault: what a judge is asked and answers, and the judges that look at sizes and distances."""
