"""The walk along the data flow of a step, which judges each pair and names origins."""
