"""What a broker must show to be called secure, and the tests that show it.

`LINES` has each line of the list, `REQUIREMENTS` what was asked of the whole, and `VULNERABILITIES` each vulnerability
of another broker or its clients that must not be in this one. A line without a test, or with one that does not exist,
fails. Long forms of some of them:

- five: `FLOWSTONE_LOGIN_FRAMES=1000000 python -m pytest tests/unit/broker/network/test_before_login.py`
- three: `make clients` (franz-go, kafkajs), and `FLOWSTONE_LOGINS=all python -m pytest tests/clients/security`
- eleven: `python -m bench.tls`, and `FLOWSTONE_TLS_LONG=1 python -m pytest tests/hostile/tls/test_tls.py`
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.pages import DOCS, ROOT

PAGE = DOCS / "security.md"
UNIT, NETWORK, LOGINS = "tests/unit", "tests/unit/broker/network", "tests/clients/security/test_logins.py"
CREDENTIALS = "tests/clients/security/test_tokens_and_certificates.py"
GATE, EVERY_API = f"{NETWORK}/test_login_gate.py", f"{UNIT}/broker/authorization/test_every_api.py"
INVENTED, ATTACKS = f"{UNIT}/authentication/test_invented_credentials.py", f"{NETWORK}/test_login_attacks.py"
SCRAM, TOKENS = f"{UNIT}/authentication/test_scram.py", f"{UNIT}/broker/handlers/security"
OAUTH, HOSTILE = f"{UNIT}/broker/authentication/test_oauthbearer.py", "tests/hostile/tls/test_tls.py"
QUOTAS, TOOLS = f"{UNIT}/broker/quotas/test_throttled_clients.py", "tests/clients/test_access_tools.py"
BYPASSES, CALLERS = f"{UNIT}/broker/authorization/test_bypasses.py", f"{UNIT}/broker/http/test_callers.py"
QUOTAS_BYPASSED = f"{UNIT}/broker/quotas/test_quota_bypasses.py"
VULNERABLE = f"{UNIT}/security/test_vulnerabilities.py"

LINES: dict[str, tuple[str, ...]] = {
    "1 every API in every version without permission: its error, no effect, nothing revealed": (
        f"{EVERY_API}::test_the_table_has_every_api_that_is_served",
        f"{EVERY_API}::test_every_guard_checks_what_the_registry_declares",
        f"{EVERY_API}::test_a_client_without_permissions_is_refused_and_learns_nothing",
        f"{EVERY_API}::test_lists_show_a_client_without_permissions_nothing",
        f"{BYPASSES}::test_an_owner_of_topics_groups_and_transactions_is_no_broker",
        f"{BYPASSES}::test_the_id_of_another_topic_is_of_no_use",
        f"{BYPASSES}::test_nobody_ends_or_joins_a_transaction_by_its_producers_id",
        f"{CALLERS}::test_no_page_but_probes_is_open_to_a_caller_without_permissions",
        f"{CALLERS}::test_each_page_needs_what_the_api_needs_that_tells_the_same",
    ),
    "2 a hundred thousand random cases equal a model": (
        f"{UNIT}/cluster/decisions/test_authorizer.py::test_random_rules_decide_as_the_model_says",
    ),
    "3 six clients log in with every mechanism": (
        f"{LOGINS}::test_confluent_kafka_logs_in",
        f"{LOGINS}::test_kafka_python_logs_in",
        f"{LOGINS}::test_aiokafka_logs_in_and_survives_the_end_of_its_session",
        f"{LOGINS}::test_kafkas_own_client_logs_in",
        f"{CREDENTIALS}::test_confluent_kafka_logs_in",
        f"{CREDENTIALS}::test_kafka_python_logs_in",
        f"{CREDENTIALS}::test_aiokafka_logs_in",
        f"{CREDENTIALS}::test_kafkas_own_client_logs_in",
        f"{OAUTH}::test_a_real_client_logs_in",
        f"{NETWORK}/test_admission.py::test_a_certificate_names_the_user",
        "scripts/client_suites/logins.py::run_franz_go",
        "scripts/client_suites/logins.py::run_kafkajs",
    ),
    "4 each failure of a login on the wire: code, close, delay": (
        f"{GATE}::test_another_request_before_the_handshake_closes_the_connection",
        f"{GATE}::test_a_frame_that_is_too_long_closes_the_connection",
        f"{GATE}::test_another_request_during_the_login_is_answered_with_its_error",
        f"{GATE}::test_an_unknown_mechanism_is_refused_with_those_that_are_enabled",
        f"{GATE}::test_every_failed_login_has_the_same_answer_after_a_delay",
        f"{GATE}::test_a_second_handshake_is_refused_if_sessions_do_not_expire",
        f"{ATTACKS}::test_a_login_again_within_a_second_of_the_last_is_refused",
    ),
    "5 a million frames before the login: flat memory, no crash": (
        f"{NETWORK}/test_before_login.py::test_mutated_frames_do_no_harm_and_take_no_memory",
        f"{NETWORK}/test_before_login.py::test_announced_frames_take_no_memory",
    ),
    "6 SCRAM: wrong nonce, authorization and replay are refused; an unknown user is not told apart": (
        f"{SCRAM}::test_a_changed_final_message_is_refused",
        f"{SCRAM}::test_a_malformed_first_message_is_refused",
        f"{SCRAM}::test_a_recorded_login_cannot_be_replayed",
        f"{INVENTED}::test_an_unknown_user_gets_the_same_salt_each_time_and_never_gets_in",
        f"{INVENTED}::test_an_unknown_user_looks_like_those_that_are_stored",
        f"{GATE}::test_an_unknown_user_of_scram_is_not_told_from_a_wrong_password",
        f"{ATTACKS}::test_how_long_a_refusal_takes_tells_nothing_about_the_user",
    ),
    "7 JWT: what is not signed as expected is refused; nothing to check with: no start": (
        f"{OAUTH}::test_a_bad_token_is_told_and_then_refused",
        f"{OAUTH}::test_a_broker_does_not_start_without_what_it_must_check",
    ),
    "8 logging in again: nothing is lost under load, other principals are refused, aiokafka survives": (
        f"{LOGINS}::test_confluent_kafka_logs_in",
        f"{LOGINS}::test_aiokafka_logs_in_and_survives_the_end_of_its_session",
        f"{GATE}::test_a_session_ends_unless_the_client_logs_in_again",
        f"{GATE}::test_nobody_logs_in_again_as_another_user",
    ),
    "9 certificates, users, rules and quotas change live, on all brokers": (
        f"{NETWORK}/test_admission.py::test_a_changed_certificate_is_used_without_a_restart",
        f"{TOKENS}/test_alter_user_scram_credentials.py::test_a_user_is_added_described_and_removed",
        f"{UNIT}/broker/authorization/test_brokers.py::test_a_user_logs_in_to_every_broker_as_soon_as_added",
        f"{UNIT}/broker/authorization/test_brokers.py::test_rules_and_quotas_reach_every_broker_and_replication_goes_on",
    ),
    "10 quotas: rates, and muted clients that harm nobody": (
        f"{QUOTAS}::test_a_producer_is_as_fast_as_its_quota",
        f"{QUOTAS}::test_a_consumer_is_as_fast_as_its_quota_and_misses_no_record",
        f"{QUOTAS}::test_a_muted_client_that_ignores_the_throttle_time_is_not_read_and_others_are",
        f"{QUOTAS}::test_clients_over_their_quota_leave_others_their_latency",
        f"{QUOTAS_BYPASSED}::test_other_client_ids_and_connections_share_the_quota_of_their_user",
    ),
    "11 TLS: half handshakes, slow readers and floods of logins harm nobody (kernel TLS is not used)": (
        f"{HOSTILE}::test_half_open_handshakes_harm_nobody",
        f"{HOSTILE}::test_readers_that_stop_reading_harm_nobody",
        f"{HOSTILE}::test_handshakes_without_pause_harm_nobody",
        f"{HOSTILE}::test_renegotiation_is_refused_and_harms_nobody",
        f"{HOSTILE}::test_a_flood_of_failed_logins_harms_nobody",
        f"{UNIT}/ports/test_tls.py::test_bytes_of_a_file_are_sent_to_a_slow_reader",
        f"{UNIT}/ports/test_tls_turns.py::test_handshakes_that_are_ready_at_once_share_iterations_with_others",
        f"{UNIT}/ports/test_tls_turns.py::test_long_responses_to_many_share_iterations_with_others_and_are_complete",
        f"{UNIT}/broker/loop/test_workers.py::test_checks_of_logins_are_limited_and_delay_no_other_work",
        f"{ATTACKS}::test_a_flood_of_one_address_does_not_lock_out_another",
    ),
    "12 brokers with encrypted peers and a locked ZooKeeper: a stranger neither joins nor reads": (
        f"{UNIT}/broker/authentication/test_peer_network.py::"
        "test_brokers_replicate_over_encrypted_connections_with_a_login",
        "tests/zookeeper/test_ensemble_login.py::test_only_brokers_read_and_change_what_they_store",
        "tests/zookeeper/test_ensemble_login.py::test_connections_to_zookeeper_are_encrypted",
    ),
    "13 no secret is in logs, metrics, errors, settings, dumps, backups or query plans": (
        f"{TOKENS}/test_canary.py::test_no_secret_is_told",
        f"{TOKENS}/test_canary.py::test_no_password_of_a_token_is_told_or_stored",
        f"{TOKENS}/test_canary.py::test_every_setting_that_may_hold_a_secret_is_sensitive",
        f"{UNIT}/cli/access/test_canary_commands.py::test_no_secret_is_in_dumps_backups_and_errors_of_commands",
        "tests/spark/test_security.py::test_no_secret_is_in_a_plan_or_an_error",
    ),
    "14 a line of the audit log for each denial, failed login and change": (
        f"{UNIT}/broker/requests/test_audit.py::test_denials_and_changes_of_rules_are_logged_with_who_did_what",
        f"{TOKENS}/test_create_delegation_token.py::test_changes_and_logins_are_audited_without_the_password",
        f"{TOKENS}/test_audited_changes.py::test_logins_users_and_quotas_are_audited",
        f"{NETWORK}/test_admission.py::test_an_expired_certificate_is_refused_and_the_audit_log_says_so",
        f"{UNIT}/broker/http/test_tokens.py::test_a_request_without_a_valid_token_is_audited_without_what_it_sent",
    ),
    "15 kafka-acls, kafka-configs and kafka-delegation-tokens work unchanged": (
        f"{TOOLS}::test_kafka_acls_adds_lists_and_removes_rules",
        f"{TOOLS}::test_kafka_configs_sets_shows_and_removes_quotas",
        f"{TOOLS}::test_kafka_delegation_tokens_creates_describes_renews_and_expires",
        f"{LOGINS}::test_kafkas_tool_adds_and_removes_users",
    ),
}
# What was asked of the whole: the lines that answer it, by number, and tests.
REQUIREMENTS: dict[str, tuple[int | str, ...]] = {
    "six clients with every mechanism that they have, and Kafka's tools": (3, 15),
    "every API and version without permission, a model of the rules, three suites over SASL_SSL": (
        1,
        2,
        "tests/support/security/secured_suites.py::pytest_load_initial_conftests",
        f"{UNIT}/security/test_secured_suites.py::test_clients_that_name_no_security_are_encrypted_and_logged_in",
    ),
    "each line of the list, a million frames before a login, each vulnerability": (
        *range(1, 16),
        f"{UNIT}/security/test_security_lines.py::test_each_vulnerability_has_a_test_and_each_test_a_vulnerability",
    ),
    "a hostile network": (11,),
    "as fast as Kafka over TLS, and a check of the rules costs a microsecond": (
        "bench/tls/__main__.py::main",
        f"{UNIT}/broker/authorization/test_cost.py::test_a_check_adds_at_most_a_microsecond",
        f"{UNIT}/broker/authorization/test_cost.py::test_without_an_authorizer_the_handler_is_called_as_it_is",
    ),
    "no secret is told": (13,),
    "ten commands from a laptop to a locked-down broker, and a threat model": (
        f"{UNIT}/test_docs.py::test_every_command_of_a_page_does_what_the_page_says",
        f"{UNIT}/security/test_security_lines.py::test_ten_commands_lead_to_a_locked_down_broker",
    ),
}
VULNERABILITIES = (
    *("2026-33557", "2026-110985", "2024-56128", "2017-12610", "2021-38153", "2022-34917", "2026-111108"),
    *("2026-111115", "2018-1288", "2023-50976", "2026-105931", "2026-82266", "2024-31141", "2025-27817"),
    *("2025-27818", "2025-27819", "2026-33558", "2026-41115"),
)


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("line", LINES)
def test_each_line_has_tests_that_exist(line: str) -> None:
    named = [test.partition("::") for test in LINES[line]]
    assert [f"{path}::{name}" for path, _, name in named if name not in functions_of(path)] == []
    assert named


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_each_requirement_is_a_line_or_has_tests_that_exist(requirement: str) -> None:
    numbers = {each for each in REQUIREMENTS[requirement] if isinstance(each, int)}
    named = [each.partition("::") for each in REQUIREMENTS[requirement] if isinstance(each, str)]
    assert numbers <= {int(line.split()[0]) for line in LINES}
    assert [f"{path}::{name}" for path, _, name in named if name not in functions_of(path)] == []


def test_ten_commands_lead_to_a_locked_down_broker() -> None:
    """`tests/unit/test_docs.py` runs them."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("\n## From a laptop to a locked-down broker\n")[2].partition("\n## ")[0]
    lines = [line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]
    commands = [line for line in lines if line.startswith(("flowstone ", "(umask", "echo "))]
    assert "Ten commands" in section
    assert len(commands) == 10, commands
    assert "What is not protected:" in text.partition("\n## Threat model\n")[2]


def test_the_lines_are_numbered_without_a_gap() -> None:
    assert [int(line.split()[0]) for line in LINES] == list(range(1, 16))


def test_each_vulnerability_has_a_test_and_each_test_a_vulnerability() -> None:
    tests = [name for name in functions_of(VULNERABLE) if name.startswith("test_")]
    found = [f"{year}-{number}" for name in tests for year, number in re.findall(r"cve_(\d+)_(\d+)", name)]
    assert sorted(found) == sorted(VULNERABILITIES)
