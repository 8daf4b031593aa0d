from rolecall.agents.adapters.command import command as command
from rolecall.agents.adapters.external import external as external
from rolecall.agents.protocol import Agent as Agent
from rolecall.agents.protocol import Context as Context
from rolecall.agents.protocol import Reply as Reply
from rolecall.agents.protocol import Usage as Usage
from rolecall.api import Event as Event
from rolecall.api import Project as Project
from rolecall.api import Rolecall as Rolecall
from rolecall.api import Run as Run
from rolecall.api import Thread as Thread
from rolecall.api import open as open
from rolecall.errors import AgentError as AgentError
from rolecall.errors import ExtractError as ExtractError
from rolecall.errors import RolecallError as RolecallError
from rolecall.errors import UsageError as UsageError
from rolecall.threads import agentkit as agentkit
from rolecall.workflow.model import END as END
from rolecall.workflow.model import Limits as Limits
from rolecall.workflow.model import Sandbox as Sandbox
from rolecall.workflow.playbook import Message as Message
from rolecall.workflow.playbook import RoleResult as RoleResult
from rolecall.workflow.playbook import ThreadContext as ThreadContext
from rolecall.workflow.python import Joined as Joined
from rolecall.workflow.python import MemberResult as MemberResult
from rolecall.workflow.python import Role as Role
from rolecall.workflow.python import Workflow as Workflow
from rolecall.workflow.python import compile as compile

__all__: list[str]
__version__: str
