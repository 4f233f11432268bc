//! Ports for servers that are stopped and started again.

use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ports below those that the kernel assigns to clients: a client that connects while the broker is
/// down must not get the broker's own port.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Returns an unused address that the kernel does not assign to clients.
pub fn free_address() -> SocketAddr {
    // Test programs that run at the same time begin at different places.
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(u64::from(RandomState::new().hash_one(0) as u32)));
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(PORTS.end - PORTS.start);
        let address = SocketAddr::from(([127, 0, 0, 1], PORTS.start + step as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
