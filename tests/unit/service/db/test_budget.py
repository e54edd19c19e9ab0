"""CPU seconds of a tenant over several API processes."""

from service.db.engine import Database
from service.http.budget import CpuBudget


def test_what_one_process_spends_for_a_tenant_another_refuses_it(database: Database) -> None:
    first, second = CpuBudget(database, per_minute=60), CpuBudget(database, per_minute=60)
    for budget in (first, second):
        budget.share()
    first.pay("busy", 50.0)
    second.pay("busy", 40.0)
    assert (first.wait_s("busy"), second.wait_s("busy")) == (0, 0)
    for _ in range(3):  # told again and again, it is charged once
        first.share()
        second.share()
    for budget in (first, second):
        assert 25 < budget.wait_s("busy") <= 30
        assert budget.wait_s("quiet") == 0


def test_a_new_process_charges_nobody_for_what_was_spent_before_it(database: Database) -> None:
    old = CpuBudget(database, per_minute=60)
    old.pay("busy", 500.0)
    old.share()
    new = CpuBudget(database, per_minute=60)
    new.share()
    assert new.wait_s("busy") == 0
    old.pay("busy", 70.0)
    old.share()
    new.share()
    assert new.wait_s("busy") > 0
