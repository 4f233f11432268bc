//! Shows a key, and the operator commands on it.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Browse, Command, Content, Fingerprint, Invalid, KeyName, KeyView, Outcome};
use hapax_core::{Redrive, RedriveView, Refusal, Replay, Resolution, Resolve, Select, limits};

use hapax_wire::Code;

use super::{Permit, Service, WAIT_MAX, refused};
use crate::auth::Action;
use crate::engine::{Cursor, Page};
use crate::problem::Problem;

/// Messages of a page by default.
pub(crate) const BROWSE_DEFAULT: usize = 100;

/// About the most bytes of messages of a page; a larger message has its own page.
pub(crate) const PAGE_BYTES_MAX: usize = 8 * 1_024 * 1_024;

/// Estimated bytes of a key in an answer; the same for HTTP and gRPC, so that pages end at the same
/// place.
pub(crate) fn key_bytes(view: &KeyView) -> usize {
    let content = view.content.as_ref().map_or(0, |content| content.size());
    let result = view.record.result.as_ref().map_or(0, |result| result.body.len());
    let points: usize =
        view.recovery_points.iter().map(|(name, data)| name.len() + data.len()).sum();
    let history: usize = view.history.iter().map(|event| 120 + event.detail.len()).sum();
    let bytes = content + result + points;
    600 + history + bytes + bytes / 3 // For escapes and base64.
}

impl Service {
    pub fn key_name(&self, permit: &Permit, key: &str, group: Option<&str>) -> KeyName {
        KeyName {
            queue: permit.queue.clone(),
            key: key.into(),
            group: group.filter(|group| !group.is_empty()).map(Arc::from),
        }
    }

    /// Everything about a key; with a wait, when its message is done, dead or parked.
    pub async fn look(
        &self,
        permit: &Permit,
        key: KeyName,
        wait: Duration,
    ) -> Result<KeyView, Problem> {
        let has_group = key.group.is_some();
        let looked = self.engine().look(key, wait.min(WAIT_MAX));
        match self.while_current(permit, wait, looked).await?? {
            Ok(view) => Ok(view),
            Err(refusal) => Err(self.no_key(permit, has_group, refusal).await?),
        }
    }

    /// The refusal of a request for one key. If keys belong to groups and none was given, it says
    /// so.
    async fn no_key(
        &self,
        permit: &Permit,
        has_group: bool,
        refusal: Refusal,
    ) -> Result<Problem, Problem> {
        if refusal != Refusal::NoSuchKey || has_group || !self.is_per_group(permit).await? {
            return Ok(refused(permit, refusal));
        }
        let detail = "no such key without a group: this queue deduplicates per group, so give the \
                      group of the key too";
        Ok(Problem::new(Code::NoSuchKey, detail))
    }

    pub async fn forget(&self, permit: &Permit, key: KeyName) -> Result<(), Problem> {
        self.change_key(permit, &key, || Command::Forget(key.clone())).await
    }

    /// Runs a finished message again, with the body if the queue did not keep it.
    pub async fn replay(
        &self,
        permit: &Permit,
        key: KeyName,
        content: Option<(Arc<Content>, Fingerprint)>,
    ) -> Result<(), Problem> {
        let replay = Replay { key: key.clone(), content };
        self.change_key(permit, &key, || Command::Replay(replay.clone())).await
    }

    pub async fn discard(&self, permit: &Permit, key: KeyName) -> Result<(), Problem> {
        self.change_key(permit, &key, || Command::Discard(key.clone())).await
    }

    pub async fn resolve(
        &self,
        permit: &Permit,
        key: KeyName,
        resolution: Resolution,
    ) -> Result<(), Problem> {
        let resolve = Resolve { key: key.clone(), resolution };
        self.change_key(permit, &key, || Command::Resolve(resolve.clone())).await
    }

    async fn change_key(
        &self,
        permit: &Permit,
        key: &KeyName,
        command: impl Fn() -> Command,
    ) -> Result<(), Problem> {
        debug_assert!(permit.action == Action::Admin, "{permit:?}");
        match self.engine().call_key(key, &command).await? {
            Outcome::Refused(Refusal::Invalid(Invalid::State(state)))
                if matches!(command(), Command::Replay(_) | Command::Resolve(_)) =>
            {
                Err(Problem::perhaps_done(state))
            }
            Outcome::Refused(refusal) => {
                Err(self.no_key(permit, key.group.is_some(), refusal).await?)
            }
            _ => Ok(()),
        }
    }

    /// The start of a page, from the previous page.
    pub fn cursor(&self, text: &str) -> Result<Cursor, Problem> {
        Cursor::parse(text, self.engine().partitions())
    }

    /// A page of the messages in a place, without leasing any: as many of those requested as fit
    /// together, and at least one.
    pub async fn browse(
        &self,
        permit: &Permit,
        browse: Browse,
        cursor: Option<Cursor>,
    ) -> Result<Page, Problem> {
        if !(1..=limits::BROWSE_MAX).contains(&browse.limit) {
            return Err(Problem::invalid(format!("limit must be 1 to {}", limits::BROWSE_MAX)));
        }
        let page = self.engine().browse(browse, cursor).await?;
        let mut page = page.map_err(|refusal| refused(permit, refusal))?;
        let mut bytes = 0;
        let fits = page.messages.iter().take_while(|view| {
            bytes += key_bytes(view);
            bytes <= PAGE_BYTES_MAX
        });
        let fits = fits.count().max(1);
        page.truncate(fits);
        page.check_next()?;
        Ok(page)
    }

    /// Starts a redrive, or returns the progress of the one with that id. A dry run gets its own id
    /// and leaves the caller's for the redrive.
    pub async fn redrive(
        &self,
        permit: &Permit,
        mut redrive: Redrive,
    ) -> Result<RedriveView, Problem> {
        debug_assert!(permit.action == Action::Admin, "{permit:?}");
        check_select(&redrive.select)?;
        if redrive.per_s == Some(0) {
            return Err(Problem::invalid("per_s: it must be at least 1, or left out"));
        }
        if redrive.dry_run {
            redrive.id = format!("dry-run-{:032x}", fastrand::u128(..)).into();
        }
        let view = self.engine().redrive(redrive).await?;
        view.map_err(|refusal| refused(permit, refusal))
    }

    /// Refuses a redrive by keys that found none of them, if keys belong to groups and no group was
    /// given.
    pub async fn check_found(
        &self,
        permit: &Permit,
        has_group: bool,
        view: &RedriveView,
    ) -> Result<(), Problem> {
        let found_none = view.by_keys && view.done && view.matched == 0;
        if !found_none || has_group || !self.is_per_group(permit).await? {
            return Ok(());
        }
        let detail = "none of the keys is dead without a group: this queue deduplicates per group, \
                      so give the group of the keys too";
        Err(Problem::new(Code::NoSuchKey, detail))
    }

    /// Stops a redrive where it is.
    pub async fn cancel_redrive(&self, permit: &Permit, id: &str) -> Result<RedriveView, Problem> {
        debug_assert!(permit.action == Action::Admin, "{permit:?}");
        let view = self.engine().cancel_redrive(&permit.queue, id).await?;
        view.map_err(|refusal| refused_redrive(permit, refusal))
    }

    pub async fn redrive_progress(
        &self,
        permit: &Permit,
        id: &str,
    ) -> Result<RedriveView, Problem> {
        let view = self.engine().redrive_progress(&permit.queue, id).await?;
        view.map_err(|refusal| refused_redrive(permit, refusal))
    }
}

fn refused_redrive(permit: &Permit, refusal: Refusal) -> Problem {
    match refusal {
        Refusal::NoSuchKey => Problem::new(Code::NoSuchKey, "no redrive with this id is known"),
        other => refused(permit, other),
    }
}

/// Refuses an empty selection; to select everything use `all`.
fn check_select(select: &Select) -> Result<(), Problem> {
    match select {
        Select::Keys { keys, .. } if keys.is_empty() => {
            Err(Problem::invalid("keys: give at least one key"))
        }
        Select::Keys { group: Some(group), .. } if group.is_empty() => {
            Err(Problem::invalid("group is empty: leave it out, or give a group"))
        }
        Select::Filter { error_contains, group, dead_before, dead_after } => {
            let texts = [("error_contains", error_contains), ("group", group)];
            for (name, text) in texts {
                if text.as_deref() == Some("") {
                    let detail = format!("filter.{name} is empty: leave it out, or give a value");
                    return Err(Problem::invalid(detail));
                }
            }
            let has_time = dead_before.is_some() || dead_after.is_some();
            if error_contains.is_none() && group.is_none() && !has_time {
                let detail = "filter: it is empty and would match every dead message; use `all` \
                              for that";
                return Err(Problem::invalid(detail));
            }
            Ok(())
        }
        Select::Keys { .. } | Select::All => Ok(()),
    }
}
