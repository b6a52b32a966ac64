"""Shell over Fabric: known hosts enforced, sudo once, deadlines on the host, scripts through exec stdin.

What Fabric does by default and this package does not: accept any host key, feed a script at one character
per 10 ms, leave a timed-out command running. Each is measured; see DESIGN.md.
"""

from provision.ssh.options import SshOptions, ask_on_terminal
from provision.ssh.transport import SshShell, connect

__all__ = ["SshOptions", "SshShell", "ask_on_terminal", "connect"]
