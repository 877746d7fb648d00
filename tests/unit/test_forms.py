import pytest

from slurm_energy.domain.ids import is_gpu_type_name
from slurm_energy.errors import ConfigError, StoreError
from slurm_energy.forms import (
    DATABASE_DRIVERS,
    check_database_url,
    database_driver,
    is_feature_name,
    is_plain,
    parse_address,
)
from slurm_energy.store.session import store_url


@pytest.mark.parametrize(("text", "address"), [("a:1", ("a", 1)), ("[::1]:8470", ("::1", 8470))])
def test_daemon_address(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:70000", "a:x", "http://a:1", "a b:1", "a:" + "1" * 5000, "a:٣"]
)
def test_malformed_daemon_address_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.daemon_address"):
        parse_address(text)


@pytest.mark.parametrize(
    "name",
    [
        "sqlite",
        "sqlite+pysqlite",
        "postgresql",
        "postgresql+psycopg",
        "mariadb",
        "mariadb+pymysql",
        "mysql",
        "sqlite+x",
    ],
)
def test_the_check_takes_the_urls_that_the_store_takes(name: str) -> None:
    url = f"{name}://host/energy"
    if database_driver(name) is None:
        with pytest.raises(ConfigError, match="not supported: use sqlite, postgresql"):
            check_database_url(url)
        with pytest.raises(StoreError, match="is not supported"):
            store_url(url)
    else:
        check_database_url(url)
        assert store_url(url).drivername in DATABASE_DRIVERS.values()


@pytest.mark.parametrize("name", ["nvlink", "A100_80", "rack:3", "a.b-c", "7", "x" * 64])
def test_node_feature(name: str) -> None:
    assert is_feature_name(name)


@pytest.mark.parametrize(
    "text", ["", "a&b", "a|b", "[a]", "a*2", "(a)", "a,b", "a b", "a\n", "é", "x" * 65, "a=b", "!a"]
)
def test_more_than_one_node_feature_or_none_is_no_name_of_one(text: str) -> None:
    assert not is_feature_name(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a100-sxm4", True),
        ("A.9", True),
        ("", False),
        ("a b", False),
        ("a\n", False),
        ("é", False),
        ("²", False),
        ("a/b", False),
        ("x" * 10, True),
        ("x" * 11, False),
    ],
)
def test_a_plain_text_has_only_letters_digits_and_what_is_named(text: str, plain: bool) -> None:
    assert is_plain(text, ".-", 10) is plain


@pytest.mark.parametrize("text", ["a100", "3090", "a.b_c-d", "x" * 63])
def test_names_of_gpu_types(text: str) -> None:
    assert is_gpu_type_name(text)


@pytest.mark.parametrize("text", ["", "A100", "-a", ".a", "a100\n", "a:1", "x" * 64, "ä"])
def test_what_is_no_name_of_a_gpu_type(text: str) -> None:
    assert not is_gpu_type_name(text)
