//! A node in this process that does not serve.

use std::net::SocketAddr;

use hapax_server::doors::standby::{Reason, Standby, routes};
use hapax_server::listen::{Limits, Listener};
use tokio::task::AbortHandle;

/// A node that refuses everything and names another one. It ends when it is dropped.
#[derive(Debug)]
pub struct TestStandby {
    address: SocketAddr,
    standby: Standby,
    running: AbortHandle,
}

impl TestStandby {
    pub async fn start(serving: Option<&str>) -> Self {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), None).await.unwrap();
        let address = listener.local_addr();
        let standby = Standby::new(reason(serving));
        let doors = routes(&standby);
        let running = async move {
            let _ = listener.run(doors, Limits::default(), std::future::pending()).await;
        };
        Self { address, standby, running: tokio::spawn(running).abort_handle() }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Names another node from now on.
    pub fn name(&self, serving: Option<&str>) {
        self.standby.set(reason(serving));
    }
}

fn reason(serving: Option<&str>) -> Reason {
    Reason { serving: serving.map(str::to_owned), ..Reason::new("this node is a standby") }
}

impl Drop for TestStandby {
    fn drop(&mut self) {
        self.running.abort();
    }
}
