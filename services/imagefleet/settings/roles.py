"""What `imagefleet migrate --roles` needs: an administrator, and a password for every role."""

from typing import Annotated

from pydantic import Field, SecretStr

from imagefleet.settings.forms import DatabaseUrl, Form
from imagefleet.settings.slices import Slice

Password = Annotated[SecretStr, Form("printable ASCII characters")]


class Roles(Slice):
    """The login roles of Postgres, while they are made."""

    admin_url: DatabaseUrl = Field(validation_alias="ADMIN_DATABASE_URL")
    """Postgres as somebody who may create roles and databases."""
    owner: Password = Field(validation_alias="OWNER_DATABASE_PASSWORD")
    """Of imagefleet_owner, which owns the schema and only migrates."""
    api: Password = Field(validation_alias="API_DATABASE_PASSWORD")
    """Of imagefleet_api."""
    worker: Password = Field(validation_alias="WORKER_DATABASE_PASSWORD")
    """Of imagefleet_worker."""
    maintenance: Password = Field(validation_alias="MAINTENANCE_DATABASE_PASSWORD")
    """Of imagefleet_maintenance."""
    operator: Password = Field(validation_alias="OPERATOR_DATABASE_PASSWORD")
    """Of imagefleet_operator."""
    admin: Password = Field(validation_alias="ADMIN_DATABASE_PASSWORD")
    """Of imagefleet_admin, which makes tenants and keys, and nothing else."""

    def passwords(self) -> dict[str, str]:
        """Return them by the role's full name."""
        return {
            f"imagefleet_{name}": secret.get_secret_value()
            for name, secret in self
            if name != "admin_url"
        }
