"""What is known of TensorFlow's names on the NPU: tables of reasons and replacements."""

from __future__ import annotations

_PROCESS_PER_DEVICE = "the NPU runs one process a device"
_STRATEGY = (
    "npu_strategy.NPUStrategy() of npu_bridge.estimator.npu, with npu_distributed_optimizer_wrapper"
)
_NO_GPU = "finds no GPU on the NPU, so the other branch runs"

SWITCHES = frozenset(
    {
        "tensorflow.config.experimental.set_memory_growth",
        "tensorflow.config.experimental.set_virtual_device_configuration",
        "tensorflow.config.experimental.set_visible_devices",
        "tensorflow.config.set_logical_device_configuration",
        "tensorflow.config.set_visible_devices",
    }
)
"""Functions that set GPUs up and do nothing else."""

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": (
        "names GPUs; a process on the NPU is given one device",
        "ASCEND_DEVICE_ID",
    ),
    "CUDA_DEVICE_ORDER": ("has no meaning on the NPU", ""),
    "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_CUDNN": ("has no meaning on the NPU", ""),
    "TF_CUDNN_DETERMINISTIC": (
        "has no effect on the NPU",
        'custom_op.parameter_map["deterministic"].i = 1',
    ),
    "TF_CUDNN_USE_AUTOTUNE": ("has no effect on the NPU", ""),
    "TF_ENABLE_AUTO_MIXED_PRECISION": (
        "has no effect on the NPU",
        'custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("allow_mix_precision")',
    ),
    "TF_FORCE_GPU_ALLOW_GROWTH": ("has no effect on the NPU", ""),
    "TF_GPU_ALLOCATOR": ("has no effect on the NPU", ""),
    "TF_GPU_THREAD_COUNT": ("has no effect on the NPU", ""),
    "TF_GPU_THREAD_MODE": ("has no effect on the NPU", ""),
    "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT": ("has no effect on the NPU", ""),
    "TF_XLA_FLAGS": ("XLA does not compile for the NPU", ""),
    "XLA_FLAGS": ("XLA does not compile for the NPU", ""),
    "HOROVOD_FUSION_THRESHOLD": ("the NPU has its own collective library", ""),
    "HOROVOD_GPU_ALLREDUCE": ("the NPU has its own collective library", ""),
    "NCCL_DEBUG": (
        "the NPU has its own collective library",
        "HCCL_CONNECT_TIMEOUT and others of HCCL",
    ),
    "NCCL_SOCKET_IFNAME": ("the NPU has its own collective library", "HCCL_SOCKET_IFNAME"),
}
"""Environment variables: why each needs a look, and what stands for it."""

LISTED = {
    "tensorflow.config.experimental.list_logical_devices": (_NO_GPU, "npu_device.open()"),
    "tensorflow.config.experimental.list_physical_devices": (_NO_GPU, "npu_device.open()"),
    "tensorflow.config.list_logical_devices": (_NO_GPU, "npu_device.open()"),
    "tensorflow.config.list_physical_devices": (_NO_GPU, "npu_device.open()"),
    "tensorflow.config.get_visible_devices": (_NO_GPU, ""),
    "tensorflow.python.client.device_lib": ("lists no NPU among the devices", ""),
    "tensorflow.test.gpu_device_name": (_NO_GPU, ""),
    "tensorflow.test.is_built_with_cuda": ("is false on the NPU", ""),
    "tensorflow.test.is_built_with_gpu_support": ("is false on the NPU", ""),
    "tensorflow.test.is_gpu_available": (_NO_GPU, ""),
    "tensorflow.DeviceSpec": (
        "names a device in parts",
        'tf.DeviceSpec.from_string("/job:localhost/replica:0/task:0/device:CPU:0")',
    ),
    "tensorflow.distribute": (_PROCESS_PER_DEVICE, _STRATEGY),
    "tensorflow.contrib.distribute": (_PROCESS_PER_DEVICE, _STRATEGY),
    "tensorflow.keras.utils.multi_gpu_model": (
        _PROCESS_PER_DEVICE,
        "train the model itself in each process",
    ),
    "tensorflow.train.ClusterSpec": (_PROCESS_PER_DEVICE, "RANK_TABLE_FILE, RANK_ID and RANK_SIZE"),
    "tensorflow.train.Server": (_PROCESS_PER_DEVICE, "RANK_TABLE_FILE, RANK_ID and RANK_SIZE"),
    "tensorflow.keras.layers.CuDNNGRU": ("is cuDNN's own", "tf.keras.layers.GRU"),
    "tensorflow.keras.layers.CuDNNLSTM": ("is cuDNN's own", "tf.keras.layers.LSTM"),
    "tensorflow.contrib.cudnn_rnn": ("is cuDNN's own", "npu_rnn of npu_bridge.estimator.npu"),
    "tensorflow.contrib.nccl": ("is NCCL's own", "hccl_ops of npu_bridge.hccl"),
    "tensorflow.contrib.tensorrt": ("is TensorRT's own", ""),
    "tensorflow.python.compiler.tensorrt": ("is TensorRT's own", ""),
    "tensorflow.experimental.tensorrt": ("is TensorRT's own", ""),
    "tensorflow.contrib.tpu": ("is the TPU's own", ""),
    "tensorflow.tpu": ("is the TPU's own", ""),
    "tensorflow.estimator.tpu": ("is the TPU's own", ""),
    "tensorflow.xla": ("XLA does not compile for the NPU", ""),
    "tensorflow.contrib.compiler": ("XLA does not compile for the NPU", ""),
    "tensorflow.train.experimental.enable_mixed_precision_graph_rewrite": (
        "the graph is rewritten for GPUs",
        'custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("allow_mix_precision")',
    ),
    "tensorflow.keras.mixed_precision": (
        "the NPU lowers precision by its own mode",
        'npu.global_options().precision_mode = "allow_mix_precision"',
    ),
    "tensorflow.enable_eager_execution": ("the vendor's list has it as unsupported under 1.15", ""),
    "tensorflow.enable_v2_behavior": ("the vendor's list has it as unsupported under 1.15", ""),
    "tensorflow.LMDBReader": ("the vendor's list has it as unsupported", "tf.data"),
    "tensorflow.WholeFileReader": ("the vendor's list has it as unsupported", "tf.data"),
    "tensorflow.IdentityReader": ("the vendor's list has it as unsupported", "tf.data"),
    "tensorflow.profiler.experimental": (
        "profiles GPUs",
        "npu.global_options().profiling_config, or ProfilingConfig of npu_bridge",
    ),
}
"""Names with no equal on the NPU, or with one that a person must fit in; what they begin with counts too."""

LISTED_FOR_TF1_ONLY = frozenset(
    {"tensorflow.enable_eager_execution", "tensorflow.enable_v2_behavior"}
)

_TPU_KEPT = "runs with use_tpu=False"

KEPT = {
    "tensorflow.contrib.tpu.InputPipelineConfig": _TPU_KEPT,
    "tensorflow.contrib.tpu.TPUConfig": _TPU_KEPT,
    "tensorflow.contrib.tpu.TPUEstimatorSpec": _TPU_KEPT,
    "tensorflow.estimator.tpu.InputPipelineConfig": _TPU_KEPT,
    "tensorflow.estimator.tpu.TPUConfig": _TPU_KEPT,
    "tensorflow.estimator.tpu.TPUEstimatorSpec": _TPU_KEPT,
    "tensorflow.train.replica_device_setter": "has no influence on the NPU",
    "tensorflow.config.optimizer.get_jit": "has no influence on the NPU",
    "tensorflow.config.set_soft_device_placement": "is what the NPU needs, where it is true",
    "tensorflow.config.experimental.get_memory_growth": "has no influence on the NPU",
    "tensorflow.config.experimental.get_virtual_device_configuration": "has no influence on the NPU",
}
"""Names of GPUs and TPUs that need nothing."""

CONTRIB = (
    "the vendor's list has tf.contrib as deprecated; whether it runs on the NPU is not known",
    "",
)

RULES = {
    "tensorflow/session": "The options of a session pass through npu_config_proto: NpuOptimizer in, remapping and "
    "memory optimization off.",
    "tensorflow/options": "Session options that meet no session in their file get the NPU's entry where they are made.",
    "tensorflow/gpu-options": "GPU options have no effect on the NPU and stay.",
    "tensorflow/estimator": "The run configuration of an estimator passes through npu_run_config_init.",
    "tensorflow/run-config": "A run configuration that does not ask for summaries gets none.",
    "tensorflow/tpu": "The TPU switches of a TPUEstimator are off.",
    "tensorflow/batch": "Datasets drop the last, smaller batch: the NPU compiles one shape.",
    "tensorflow/horovod": "Horovod calls become calls of the NPU's collective library.",
    "tensorflow/import": "Imports go when nothing uses them any more; those of Horovod that must stay are listed.",
    "tensorflow/device": "Graphs go to the NPU whole; GPU placements become the host's.",
    "tensorflow/gpu-switch": "Calls that set GPUs up are left out; queries for GPUs are listed.",
    "tensorflow/xla": "XLA is off: it does not compile for the NPU.",
    "tensorflow/environment": "CUDA_VISIBLE_DEVICES with one device becomes ASCEND_DEVICE_ID; "
    "other variables are listed.",
    "tensorflow/loss-scale": "Loss scaling becomes the NPU's own.",
    "tensorflow/dropout": "tf.nn.dropout becomes the NPU's own.",
    "tensorflow/gelu": "GELU has an operator of its own on the NPU; a function that computes it from parts is listed.",
    "tensorflow/keras-session": "Keras gets a session for the NPU where the program starts.",
    "tensorflow/keras": "Keras apart from TensorFlow is listed.",
    "tensorflow/npu-device": "TensorFlow 2 programs open the NPU as default device.",
    "tensorflow/contrib": "tf.contrib is listed: whether it runs on the NPU is not known.",
    "tensorflow/known": "Names of GPUs and TPUs that need nothing on the NPU.",
    "tensorflow/unsupported": "Names with no equal on the NPU are listed.",
}
"""What each rule does."""
