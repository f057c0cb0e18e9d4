from lockstep.terminal import main

pytest_plugins = ["lockstep.testing.fixtures"]


def test_the_planted_fault_is_listed(lockstep_faulty_pair, capsys):
    pair = lockstep_faulty_pair
    assert main(["largest", str(pair.reference), str(pair.candidate), "--limit", "99"]) == 1
    assert pair.site in capsys.readouterr().out
