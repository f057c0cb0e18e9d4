"""`lockstep diagnose`: a cure begins with what the log itself holds; a note that all is well needs its reason."""

from __future__ import annotations

import io

import pytest

from lockstep_check.logs.known_messages import Severity, known_messages
from lockstep_check.logs.ranking import in_order
from lockstep_check.logs.scan import Findings, Found, Scanner

SCANNER = Scanner(known_messages())


def first_of(log: str) -> Found:
    """The message that is told first."""
    findings = Findings()
    SCANNER.scan("train.log", io.BytesIO(log.encode()), findings)
    return in_order(findings)[0].found


HELD = {
    "EI0002: The wait execution of the Notify register times out. Reason: The Notify register has not received the "
    "Notify record from remote rank [5]. base information: [tag[AllReduce_10.20.1.7%eth0_30000_0]]": (
        "It waited for rank 5.",
        "The collective is AllReduce_10.",
    ),
    "EI0005: The arguments for collective communication are inconsistent between ranks: tag [AllReduce_world], "
    "parameter [count], local [4096], remote [2048]": (
        "count is 4096 on this rank and 2048 on the other.",
    ),
    "EI0005: The arguments for collective communication are inconsistent between ranks: parameter count, local end "
    "1024, remote end 512.": ("count is 1024 on this rank and 512 on the other.",),
    "EI0006: Getting socket times out. (localIp[10.3.0.8], remoteIp[10.3.0.9])": ("10.3.0.9",),
    "Memory access fault by GPU node-3 (Agent handle: 0x55) on address 0x7f1c. Reason: Page not present.": (
        "It was node-3, at address 0x7f1c: Page not present.",
    ),
    "RuntimeError: Unable to find interface for: [eth7]": ("instead of eth7",),
    "n1:3:3 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib9\n"
    "n1:3:3 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found": ("ib9",),
    "n1:3:3 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0>\n"
    "n1:3:7 [0] socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.2<40021> failed : refused": (
        "docker0 (172.17.0.1)",
        "172.17.0.2",
    ),
    "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16": (
        "They are Float and BFloat16.",
    ),
    "RuntimeError: expected m1 and m2 to have the same dtype, but got: float != c10::Half": (
        "They are float and c10::Half.",
    ),
    "RuntimeError: expected scalar type Long but found Float": ("It wants Long and gets Float.",),
    "RuntimeError: Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same": (
        "The input is torch.cuda.HalfTensor, the weight torch.cuda.FloatTensor.",
    ),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. Process 2214 has 61.20 GiB memory in use. "
    "Including non-PyTorch memory, this process has 16.70 GiB memory in use.": (
        "Process 2214 holds 61.20 GiB",
        "This process holds 16.70 GiB",
    ),
}


@pytest.mark.parametrize(("log", "held"), HELD.items())
def test_a_cure_begins_with_what_the_log_holds(log: str, held: tuple[str, ...]) -> None:
    # given a log that says with whom, on which interface or of which dtype it failed
    cure = first_of(log).cure
    # then the cure has it, in front of what holds for all such failures
    assert [words for words in held if words not in cure] == []
    assert not cure.startswith(first_of(log).message.cure[:20]) or "{" in first_of(log).message.cure


def test_a_log_that_holds_no_more_has_the_plain_cure() -> None:
    found = first_of("torch.OutOfMemoryError: CUDA out of memory.")
    assert found.cure == found.message.cure


FATAL = (
    # the training is not resumed
    "slurmstepd: error: *** JOB 8 ON n CANCELLED AT 2025-03-02T04:11:09 DUE TO PREEMPTION ***\nstep 490 loss 1.8\n",
    # it was resumed before
    "Resuming from checkpoint a.pt\nslurmstepd: error: *** JOB 8 ON n CANCELLED AT 2025-03-02T04:11:09 ***\n",
    # lines of standard output that were printed before the traceback stand behind it
    "ModuleNotFoundError: No module named 'flash_attn'\nstep 1 loss 2.3\nstep 2 loss 2.2\n",
    # something else is not available
    "ModuleNotFoundError: No module named 'flash_attn'\nstep 1 loss 2.3\ntensorboard is not available\n",
)


@pytest.mark.parametrize("log", FATAL)
def test_an_error_stays_one_where_nothing_says_that_it_was_meant(log: str) -> None:
    findings = Findings()
    SCANNER.scan("train.log", io.BytesIO(log.encode()), findings)
    assert Severity.ERROR in {one.severity for one in findings.found.values()}


def test_a_schedule_in_the_wrong_order_without_a_loss_scale_is_a_warning() -> None:
    line = "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0\n"
    assert first_of(line).severity is Severity.WARNING


def test_a_class_of_failure_alone_is_told_as_the_cause() -> None:
    # given a code of a whole class, with nothing more particular in its log
    alone = first_of(
        "Queue aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: failed to allocate.\n"
    )
    # then it is the first answer
    assert alone.message.name == "hsa-status"
