//! A proxy that loses the reply to a statement: the server executed it, the client cannot know.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The end of what a client sends for a statement, and of what a server answers.
const SYNC: &[u8] = b"S\0\0\0\x04";
const READY: &[u8] = b"Z\0\0\0\x05I";

/// Passes bytes on between clients and a PostgreSQL server. It lives as long as the test program.
#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    /// How many statements more are answered before a reply is lost; negative for all.
    until: Arc<AtomicI64>,
}

impl Proxy {
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let until = Arc::new(AtomicI64::new(-1));
        let shared = Arc::clone(&until);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)) {
                    pass(client, server, &shared);
                }
            }
        });
        Self { port, until }
    }

    /// Loses the reply to one statement, after so many others.
    pub fn lose_reply_after(&self, statements: i64) {
        self.until.store(statements, Ordering::SeqCst);
    }

    /// Whether the loss is still to come.
    pub fn is_armed(&self) -> bool {
        self.until.load(Ordering::SeqCst) >= 0
    }

    pub fn disarm(&self) {
        self.until.store(-1, Ordering::SeqCst);
    }
}

fn pass(client: TcpStream, server: TcpStream, until: &Arc<AtomicI64>) {
    let loses = Arc::new(AtomicBool::new(false));
    let (lost, until) = (Arc::clone(&loses), Arc::clone(until));
    let (mut from_client, mut to_server) =
        (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from_client.read(&mut buffer) {
            let bytes = buffer.get(..count).unwrap();
            if bytes.ends_with(SYNC) && until.fetch_sub(1, Ordering::SeqCst) == 0 {
                loses.store(true, Ordering::SeqCst);
            }
            if to_server.write_all(bytes).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (mut from_server, mut to_client) = (server, client);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from_server.read(&mut buffer) {
            let bytes = buffer.get(..count).unwrap();
            if lost.load(Ordering::SeqCst) {
                // It is committed: nobody is told.
                if bytes.ends_with(READY) {
                    break;
                }
            } else if to_client.write_all(bytes).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
        let _ = from_server.shutdown(Shutdown::Both);
    });
}
