from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette

from weightshift.contracts.identity import Service
from weightshift.registry.client import RegistryClient
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.service import create_app
from weightshift.registry.tokens import EVERY, Grant, MemoryTokens, Role


@pytest.fixture
def service() -> Service:
    return Service(model="ranker", environment="test")


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def tokens() -> MemoryTokens:
    return MemoryTokens()


@pytest.fixture
def operator_token(tokens: MemoryTokens) -> str:
    return tokens.issue(Grant(role=Role.OPERATOR, subject="ada", model=EVERY, environment=EVERY))


@pytest.fixture
def runtime_token(tokens: MemoryTokens, service: Service) -> str:
    return tokens.issue(
        Grant(role=Role.RUNTIME, subject="gpu-pool", model=service.model, environment=service.environment)
    )


@pytest.fixture
def transport(registry: MemoryRegistry, tokens: MemoryTokens) -> httpx.ASGITransport:
    app: Starlette = create_app(registry=registry, tokens=tokens, bell=registry.bell)
    return httpx.ASGITransport(app, raise_app_exceptions=True)


@pytest.fixture
async def http(transport: httpx.ASGITransport) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=transport, base_url="http://registry") as client:
        yield client


@pytest.fixture
async def operator(transport: httpx.ASGITransport, operator_token: str) -> AsyncIterator[RegistryClient]:
    async with RegistryClient(url="http://registry", token=operator_token, transport=transport) as client:
        yield client


@pytest.fixture
async def runtime(transport: httpx.ASGITransport, runtime_token: str) -> AsyncIterator[RegistryClient]:
    async with RegistryClient(url="http://registry", token=runtime_token, transport=transport) as client:
        yield client
