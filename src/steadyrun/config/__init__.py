"""Loads the settings from files and the environment, checked and typed."""

from steadyrun.config.describe import describe, to_document
from steadyrun.config.load import Config, load
from steadyrun.config.locations import Locations, locate
from steadyrun.config.schema import (
    UNTRUSTED_SETTINGS,
    AgentSettings,
    BudgetSettings,
    GateSettings,
    ProviderSettings,
    list_patterns,
)
from steadyrun.config.toml_source import to_printable
from steadyrun.config.trust import is_trusted, trust
from steadyrun.providers.registry import list_kinds

__all__ = [
    "UNTRUSTED_SETTINGS",
    "AgentSettings",
    "BudgetSettings",
    "Config",
    "GateSettings",
    "Locations",
    "ProviderSettings",
    "describe",
    "is_trusted",
    "list_kinds",
    "list_patterns",
    "load",
    "locate",
    "to_document",
    "to_printable",
    "trust",
]
