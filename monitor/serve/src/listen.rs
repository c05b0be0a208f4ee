//! Sockets to listen on: an address that only this machine reaches, or a UNIX socket.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::output;
use rustix::fs::Mode;
use tokio::net::{TcpListener, UnixListener};

use crate::cli::Listen;

/// A socket that accepts clients.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// A UNIX socket's file. It is removed when the server ends, unless another server has replaced it.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), identity: identity(path)? })
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|facts| (facts.dev(), facts.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// The page's address for people, with the port that the kernel chose.
    pub(crate) fn describe(&self) -> String {
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("listening on http://{address}/"),
                Err(e) => format!("listening on an address that the kernel does not tell: {e}"),
            },
            Listener::Unix(_, file) => format!("listening on unix:{}", file.path.display()),
        }
    }
}

/// Refuses an address that other machines can reach, unless `any_address`, and then warns.
pub(crate) fn check_address(listen: &Listen, any_address: bool) -> Result<(), Failure> {
    let Listen::Tcp(address) = listen else { return Ok(()) };
    if address.ip().is_loopback() {
        return Ok(());
    }
    if any_address {
        output::warn(&format!(
            "warning: every machine that reaches {address} can read the names and the use of all units; \
             nothing authenticates clients"
        ));
        return Ok(());
    }
    Err(Failure::new(
        Exit::Usage,
        format!(
            "{address}: other machines can reach this address, and nothing authenticates clients; listen on \
             127.0.0.1 or on unix:PATH behind a proxy that does, or allow it with --any-address"
        ),
    ))
}

/// Opens the socket. A UNIX socket gets mode 0660; a file that a dead server left there is replaced.
pub(crate) fn open(listen: &Listen) -> Result<Listener, Failure> {
    match listen {
        Listen::Tcp(address) => {
            let listener = std::net::TcpListener::bind(address)
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .and_then(TcpListener::from_std);
            listener.map(Listener::Tcp).map_err(|e| cannot_listen(listen, &e))
        }
        Listen::Unix(path) => {
            remove_stale(path)?;
            // No other thread exists yet that could make a file meanwhile.
            let mask = rustix::process::umask(Mode::from_raw_mode(0o117));
            let listener = UnixListener::bind(path);
            rustix::process::umask(mask);
            listener
                .and_then(|listener| Ok(Listener::Unix(listener, SocketFile::at(path)?)))
                .map_err(|e| cannot_listen(listen, &e))
        }
    }
}

fn cannot_listen(listen: &Listen, e: &io::Error) -> Failure {
    let (exit, remedy) = match (e.kind(), listen) {
        (io::ErrorKind::AddrInUse, Listen::Tcp(address)) => (
            Exit::InUse,
            format!("; another program listens on port {}, choose another with --listen", address.port()),
        ),
        (io::ErrorKind::AddrInUse, Listen::Unix(_)) => {
            (Exit::InUse, "; choose another path with --listen".to_owned())
        }
        (io::ErrorKind::PermissionDenied, Listen::Tcp(_)) => {
            (Exit::NotAllowed, "; choose a port above 1023 with --listen".to_owned())
        }
        (io::ErrorKind::PermissionDenied, Listen::Unix(_)) => {
            (Exit::NotAllowed, "; choose a folder that you may write to with --listen".to_owned())
        }
        (io::ErrorKind::AddrNotAvailable, _) => {
            (Exit::Unavailable, "; choose an address of this machine with --listen".to_owned())
        }
        (_, Listen::Unix(_)) => (Exit::CannotCreate, "; choose another path with --listen".to_owned()),
        (_, Listen::Tcp(_)) => (Exit::System, String::new()),
    };
    Failure::new(exit, format!("{listen}: cannot listen there: {e}{remedy}"))
}

/// Removes the socket of a server that no longer runs. Fails if a server listens on it, or if the file is no
/// socket.
fn remove_stale(path: &Path) -> Result<(), Failure> {
    let failure = |exit, what: &str| {
        Failure::new(exit, format!("{}: {what}; choose another path with --listen", path.display()))
    };
    let Ok(facts) = fs::symlink_metadata(path) else { return Ok(()) };
    if !facts.file_type().is_socket() {
        return Err(failure(Exit::CannotCreate, "this file exists, and is no socket"));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|e| failure(Exit::of_named(&e), &format!("cannot replace an old socket: {e}"))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(failure(Exit::InUse, &format!("cannot tell whether a server listens there: {e}"))),
        Ok(_) => Err(failure(Exit::InUse, "another server listens there")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_addresses_of_this_machine_need_no_flag() {
        for (text, is_local) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("unix:/x", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
        ] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(check_address(&listen, false).is_ok(), is_local, "{text}");
            assert!(check_address(&listen, true).is_ok());
        }
    }

    #[tokio::test]
    async fn a_socket_is_replaced_only_if_nobody_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http");
        let listen = Listen::Unix(path.clone());
        // A listener that is dropped leaves its file, as a killed server does.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = open(&listen).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert_eq!(open(&listen).err().unwrap().exit, Exit::InUse);
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "a user's file").unwrap();
        assert_eq!(open(&listen).err().unwrap().exit, Exit::CannotCreate);
        assert_eq!(fs::read(&path).unwrap(), b"a user's file");
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let failure = open(&Listen::Tcp(address)).err().unwrap();
        assert_eq!(failure.exit, Exit::InUse);
        assert!(failure.message().contains(&format!("port {}", address.port())), "{failure}");
    }
}
