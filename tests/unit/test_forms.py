import pytest

from slurm_energy.errors import ConfigError, StoreError
from slurm_energy.forms import (
    DATABASE_DRIVERS,
    check_database_url,
    database_driver,
    is_feature_name,
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
