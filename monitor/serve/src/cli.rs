//! The command line of `commonhold-serve`: `commonhold serve`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use commonhold_command::exit::Exit;
use commonhold_command::flags::in_paragraphs;
use commonhold_command::place::Place;

/// Serve metrics for Prometheus, and a live page, on this machine
#[derive(Debug, Parser)]
#[command(
    name = "commonhold",
    bin_name = "commonhold",
    version,
    after_help = Exit::table(),
    after_long_help = Exit::table(),
    mut_subcommands = in_paragraphs
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of this program; `commonhold NAME` passes its own name on as the first argument.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "a comment here would replace the command's own description")]
pub enum Command {
    Serve(Serve),
}

/// Serve metrics for Prometheus, and a live page, on this machine
///
/// Reads the daemon's socket, and answers HTTP requests until Ctrl-C or SIGTERM:
///
///   /             a live page with all units
///   /metrics      metrics, as OpenMetrics or in Prometheus's text format
///   /api/live     the live page's data, as server-sent events
///   /api/history  past samples of a unit, as JSON
///
/// Every client may read the names and the use of all units: nothing authenticates clients. So an address
/// that other machines can reach is refused unless --any-address is given. A UNIX socket is open to this
/// user and group alone. Nothing can be changed through this server, and it shows no processes.
///
/// Root is refused: the server needs no privileges. `systemctl enable --now commonhold-serve` runs it under
/// a user of its own.
///
/// While no daemon runs, `/metrics` has `commonhold_up 0`, and the server tries again until one does.
///
/// docs/metrics.md lists the metrics.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
#[allow(clippy::doc_markdown, reason = "backticks would be shown in the help")]
pub struct Serve {
    /// Where to listen: an address and a port, such as 127.0.0.1:9477 or [::1]:9477, or a UNIX socket, as
    /// unix:PATH. Port 0 stands for any free port
    #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:9477")]
    pub listen: Listen,
    /// Allow an address that other machines can reach, and requests under any host name, as from a reverse
    /// proxy
    #[arg(long)]
    pub any_address: bool,
    /// Allow root to run this
    #[arg(long)]
    pub as_root: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show a comment in place of the flag's help")]
    pub place: Place,
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// On an address and a port.
    Tcp(SocketAddr),
    /// On a UNIX socket.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("write the socket's path after `unix:`".to_owned()),
                path => Ok(Listen::Unix(PathBuf::from(path))),
            };
        }
        let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        numeric.as_deref().unwrap_or(text).parse().map(Listen::Tcp).map_err(|_| {
            "write an address and a port, such as `127.0.0.1:9477` or `[::1]:9477`, or `unix:PATH`".to_owned()
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use commonhold_command::flags::assert_help_is_filled;

    use super::*;

    #[test]
    fn help_is_filled_to_the_terminals_width() {
        for width in [80, 90, 100] {
            let mut command = Cli::command();
            command.build();
            assert_help_is_filled(&mut command, width);
        }
    }

    #[test]
    fn addresses_are_parsed() {
        for (text, shown) in [
            ("127.0.0.1:9477", "127.0.0.1:9477"),
            ("localhost:0", "127.0.0.1:0"),
            ("[::1]:80", "[::1]:80"),
            ("unix:/run/a b", "unix:/run/a b"),
        ] {
            assert_eq!(text.parse::<Listen>().map(|listen| listen.to_string()), Ok(shown.to_owned()));
        }
        for wrong in ["", "9477", ":9477", "127.0.0.1", "127.0.0.1:65536", "example.org:80", "unix:"] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }
}
