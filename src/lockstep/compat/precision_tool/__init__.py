"""precision_tool's names: import `lockstep.compat.precision_tool.tf_config as npu_tf_config` before the graph is built.

`python -m lockstep.compat.precision_tool.cli` opens its prompt over `precision_data`.
"""
