"""What is this process told to do? Settings from files and the environment, checked and typed."""

from steadyrun.config.describe import as_document, describe
from steadyrun.config.load import Config, load
from steadyrun.config.locations import Locations, is_agents_own, locate
from steadyrun.config.schema import (
    HARMLESS,
    AgentSettings,
    BudgetSettings,
    DaemonSettings,
    GateSettings,
    ProviderSettings,
    Settings,
    setting_patterns,
)
from steadyrun.config.toml_source import printable
from steadyrun.config.trust import is_trusted, trust
from steadyrun.providers.registry import list_kinds

__all__ = [
    "HARMLESS",
    "AgentSettings",
    "BudgetSettings",
    "Config",
    "DaemonSettings",
    "GateSettings",
    "Locations",
    "ProviderSettings",
    "Settings",
    "as_document",
    "describe",
    "is_agents_own",
    "is_trusted",
    "list_kinds",
    "load",
    "locate",
    "printable",
    "setting_patterns",
    "trust",
]
