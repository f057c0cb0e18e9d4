"""precision_tool: import `lockstep_interop_names.precision_tool.tf_config as npu_tf_config` before the graph is built.

`python -m lockstep_interop_names.precision_tool.cli` opens its prompt over `precision_data`.
"""
