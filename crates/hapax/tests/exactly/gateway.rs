//! Somebody elsewhere, whose effects stay: a directory in which every charge is a file.
//!
//! Under a key there is one charge, however often it is asked for; without a key every call is a
//! charge. It also tells its callers where to stop, so that a test can kill them there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use hapax_testing::until;

#[derive(Clone, Debug)]
pub(crate) struct Gateway(PathBuf);

impl Gateway {
    pub(crate) fn new(directory: &Path) -> Self {
        fs::create_dir_all(directory.join("charges")).unwrap();
        fs::create_dir_all(directory.join("calls")).unwrap();
        Self(directory.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Charges, and tells the receipt.
    pub(crate) fn charge(&self, key: Option<&str>) -> String {
        let fresh = || uuid::Uuid::now_v7().to_string();
        File::create_new(self.0.join("calls").join(fresh())).unwrap();
        let name = key.map_or_else(fresh, str::to_owned);
        match File::create_new(self.0.join("charges").join(&name)) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}"),
        }
        format!("receipt {name}")
    }

    pub(crate) fn charges(&self) -> usize {
        fs::read_dir(self.0.join("charges")).unwrap().count()
    }

    pub(crate) fn calls(&self) -> usize {
        fs::read_dir(self.0.join("calls")).unwrap().count()
    }

    /// From now on callers stop at this place, and go no further.
    pub(crate) fn stop_callers(&self, place: &str) {
        fs::write(self.0.join("stop"), place).unwrap();
    }

    /// Callers go on from now on; those that stand still do not.
    pub(crate) fn let_callers_pass(&self) {
        for name in ["stop", "stopped"] {
            let _ = fs::remove_file(self.0.join(name));
        }
    }

    /// Callers go on from now on, also those that stand still.
    pub(crate) fn let_callers_go_on(&self) {
        fs::write(self.0.join("go-on"), "").unwrap();
        self.let_callers_pass();
    }

    /// Waits until a caller stands still.
    #[track_caller]
    pub(crate) fn wait_for_a_stopped_caller(&self) {
        until("a caller to stand still", || self.0.join("stopped").exists().then_some(()));
    }

    /// Of a caller: stands still where it is told to, until it is told to go on.
    pub(crate) async fn pass(&self, place: &str) {
        if fs::read_to_string(self.0.join("stop")).is_ok_and(|told| told == place) {
            fs::write(self.0.join("stopped"), "").unwrap();
            while !self.0.join("go-on").exists() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    }
}
