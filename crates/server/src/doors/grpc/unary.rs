//! The unary calls.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Browse, QueueName, Redrive, Resolution, Select};
use hapax_wire::proto::hapax_server::Hapax;
use hapax_wire::{Code, proto};
use tonic::{Request, Response, Status, Streaming};

use super::backup::{self, Progress};
use super::claims;
use super::status::status;
use super::{Door, principal};
use crate::auth::{Action, Principal};
use crate::doors::config;
use crate::doors::shape::{self, some};
use crate::problem::Problem;
use crate::service::{self, BROWSE_DEFAULT, Change, Opened, Permit, Queues, Service, if_match};

/// The same limit as for a batch over HTTP.
const BATCH_MAX: usize = 1_000;
/// The most bytes of results in the answers to one list.
const ANSWER_BYTES_MAX: usize = 16 * 1_024 * 1_024;

type Reply<T> = Result<Response<T>, Status>;
type NoSends = futures_util::stream::Empty<Result<proto::SendReply, Status>>;
type NoClaims = futures_util::stream::Empty<Result<proto::ClaimsReply, Status>>;
type NoWork = futures_util::stream::Empty<Result<proto::WorkReply, Status>>;

/// No route leads there.
fn elsewhere() -> Status {
    Status::unimplemented("the streams are served by routes of their own")
}

impl Door {
    /// Authenticates, authorises, and runs a call; a refusal becomes a status.
    async fn with<T, R, F: Future<Output = Result<R, Problem>>>(
        &self,
        request: Request<T>,
        action: Action,
        queue: impl FnOnce(&T) -> &str,
        call: impl FnOnce(Service, Permit, T) -> F,
    ) -> Reply<R> {
        let told = async {
            let principal = principal(&request)?;
            let message = request.into_inner();
            let permit = self.service.authorise(&principal, action, queue(&message))?;
            call(self.service.clone(), permit, message).await
        };
        told.await.map(Response::new).map_err(|problem| status(&problem))
    }

    /// The progress of a redrive, after cancelling it if requested.
    async fn redrive_named(
        &self,
        request: Request<proto::GetRedriveRequest>,
        cancel: bool,
    ) -> Reply<proto::RedriveProgress> {
        let asked = async move |service: Service, permit: Permit, it: proto::GetRedriveRequest| {
            let view = match cancel {
                true => service.cancel_redrive(&permit, &it.id).await?,
                false => service.redrive_progress(&permit, &it.id).await?,
            };
            Ok(shape::redrive(&view))
        };
        self.with(request, Action::Admin, |it| &it.queue, asked).await
    }

    async fn change(
        &self,
        request: Request<proto::QueueRequest>,
        change: Change,
    ) -> Reply<proto::Empty> {
        self.with(
            request,
            Action::Admin,
            |it| &it.queue,
            async move |service, permit, _| {
                service.change(&permit, change).await?;
                Ok(proto::Empty {})
            },
        )
        .await
    }
}

#[tonic::async_trait]
impl Hapax for Door {
    type SendStream = NoSends;
    type WorkStream = NoWork;
    type ClaimsStream = NoClaims;
    type BackupStream = Progress;

    // The streams have their own routes, where frames are read without the framework.

    async fn send(&self, _: Request<Streaming<proto::SendFrame>>) -> Reply<NoSends> {
        Err(elsewhere())
    }

    async fn work(&self, _: Request<Streaming<proto::WorkFrame>>) -> Reply<NoWork> {
        Err(elsewhere())
    }

    async fn claims(&self, _: Request<Streaming<proto::ClaimsFrame>>) -> Reply<NoClaims> {
        Err(elsewhere())
    }

    async fn send_batch(&self, request: Request<proto::SendFrame>) -> Reply<proto::SendReply> {
        self.with(request, Action::Send, |it| &it.queue, send_batch).await
    }

    async fn receive(&self, request: Request<proto::ReceiveRequest>) -> Reply<proto::ReceiveReply> {
        self.with(request, Action::Work, |it| &it.queue, receive).await
    }

    async fn settle(&self, request: Request<proto::SettleRequest>) -> Reply<proto::SettleReply> {
        let principal = principal(&request).map_err(|problem| status(&problem))?;
        self.with(
            request,
            Action::Work,
            |it| &it.queue,
            async move |service, permit, it| settle(&service, &principal, &permit, it).await,
        )
        .await
    }

    async fn claim(&self, request: Request<proto::ClaimRequest>) -> Reply<proto::ClaimReply> {
        self.with(request, Action::Claim, |it| &it.queue, claim).await
    }

    async fn get_key(&self, request: Request<proto::GetKeyRequest>) -> Reply<proto::Key> {
        self.with(
            request,
            Action::Look,
            |it| queue_of(&it.key),
            async move |service, permit, it| {
                let key = it.key.unwrap_or_default();
                let name = service.key_name(&permit, &key.key, some(&key.group));
                let wait = Duration::from_millis(it.wait_ms);
                Ok(shape::key(None, service.look(&permit, name, wait).await?))
            },
        )
        .await
    }

    async fn forget_key(&self, request: Request<proto::KeyRequest>) -> Reply<proto::Empty> {
        self.with(
            request,
            Action::Admin,
            |it| &it.queue,
            async move |service, permit, it| {
                let name = service.key_name(&permit, &it.key, some(&it.group));
                service.forget(&permit, name).await?;
                Ok(proto::Empty {})
            },
        )
        .await
    }

    async fn discard_key(&self, request: Request<proto::KeyRequest>) -> Reply<proto::Empty> {
        self.with(
            request,
            Action::Admin,
            |it| &it.queue,
            async move |service, permit, it| {
                let name = service.key_name(&permit, &it.key, some(&it.group));
                service.discard(&permit, name).await?;
                Ok(proto::Empty {})
            },
        )
        .await
    }

    async fn replay_key(&self, request: Request<proto::ReplayRequest>) -> Reply<proto::Empty> {
        self.with(
            request,
            Action::Admin,
            |it| queue_of(&it.key),
            async move |service, permit, it| {
                let key = it.key.unwrap_or_default();
                let name = service.key_name(&permit, &key.key, some(&key.group));
                let content = it.message.as_ref().map(|message| {
                    let sent = shape::send(service.recipe(), permit.queue(), &message.into())?;
                    Ok::<_, Problem>((sent.content, sent.fingerprint))
                });
                service.replay(&permit, name, content.transpose()?).await?;
                Ok(proto::Empty {})
            },
        )
        .await
    }

    async fn resolve_key(&self, request: Request<proto::ResolveRequest>) -> Reply<proto::Empty> {
        self.with(
            request,
            Action::Admin,
            |it| queue_of(&it.key),
            async move |service, permit, it| {
                use proto::resolve_request::Resolution as Said;
                let key = it.key.unwrap_or_default();
                let name = service.key_name(&permit, &key.key, some(&key.group));
                let resolution = match it.resolution {
                    Some(Said::Done(done)) => {
                        let result = done.result.as_ref().map(shape::blob_in);
                        Resolution::Done(result.transpose()?)
                    }
                    Some(Said::Retry(_)) => Resolution::Retry,
                    None => return Err(Problem::invalid("give done or retry")),
                };
                service.resolve(&permit, name, resolution).await?;
                Ok(proto::Empty {})
            },
        )
        .await
    }

    async fn browse(&self, request: Request<proto::BrowseRequest>) -> Reply<proto::BrowseReply> {
        self.with(request, Action::Browse, |it| &it.queue, browse).await
    }

    async fn redrive(
        &self,
        request: Request<proto::RedriveRequest>,
    ) -> Reply<proto::RedriveProgress> {
        self.with(request, Action::Admin, |it| &it.queue, redrive).await
    }

    async fn get_redrive(
        &self,
        request: Request<proto::GetRedriveRequest>,
    ) -> Reply<proto::RedriveProgress> {
        self.redrive_named(request, false).await
    }

    async fn cancel_redrive(
        &self,
        request: Request<proto::GetRedriveRequest>,
    ) -> Reply<proto::RedriveProgress> {
        self.redrive_named(request, true).await
    }

    async fn put_queue(&self, request: Request<proto::PutQueueRequest>) -> Reply<proto::Queue> {
        self.with(
            request,
            Action::Create,
            |it| &it.queue,
            async move |service, permit, it| {
                let config = config::read(it.config_json.as_bytes())?;
                let expected = some(&it.if_match).map(if_match).transpose()?;
                let (queue, created) = service.configure(&permit, config, expected).await?;
                Ok(proto::Queue { created, ..shape::queue(&queue) })
            },
        )
        .await
    }

    async fn get_queue(&self, request: Request<proto::QueueRequest>) -> Reply<proto::Queue> {
        self.with(
            request,
            Action::Look,
            |it| &it.queue,
            async move |service, permit, _| Ok(shape::queue(&service.show(&permit).await?)),
        )
        .await
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Reply<proto::ListQueuesReply> {
        let told = async {
            let principal = principal(&request)?;
            let Queues { queues, unanswered } = self.service.list(&principal).await?;
            let queues = queues.iter().map(shape::queue).collect();
            Ok(Response::new(proto::ListQueuesReply { queues, unanswered }))
        };
        told.await.map_err(|problem: Problem| status(&problem))
    }

    async fn delete_queue(&self, request: Request<proto::QueueRequest>) -> Reply<proto::Empty> {
        self.with(
            request,
            Action::Admin,
            |it| &it.queue,
            async move |service, permit, _| {
                service.delete(&permit, None).await?;
                Ok(proto::Empty {})
            },
        )
        .await
    }

    async fn pause_queue(&self, request: Request<proto::QueueRequest>) -> Reply<proto::Empty> {
        self.change(request, Change::Pause).await
    }

    async fn resume_queue(&self, request: Request<proto::QueueRequest>) -> Reply<proto::Empty> {
        self.change(request, Change::Resume).await
    }

    async fn purge_queue(&self, request: Request<proto::PurgeRequest>) -> Reply<proto::Empty> {
        self.with(
            request,
            Action::Admin,
            |it| &it.queue,
            async move |service, permit, it| {
                service.change(&permit, Change::Purge { keys: it.keys }).await?;
                Ok(proto::Empty {})
            },
        )
        .await
    }

    async fn backup(&self, request: Request<proto::BackupRequest>) -> Reply<Progress> {
        let principal = principal(&request).map_err(|problem| status(&problem))?;
        self.service.operate(&principal).map_err(|problem| status(&problem))?;
        let progress = backup::begin(&self.service, request.into_inner().directory);
        Ok(Response::new(progress.map_err(|problem| status(&problem))?))
    }

    async fn set_log(&self, request: Request<proto::SetLogRequest>) -> Reply<proto::Empty> {
        let told = principal(&request).and_then(|principal| {
            self.service.set_log(&principal, &request.get_ref().filter)?;
            Ok(Response::new(proto::Empty {}))
        });
        told.map_err(|problem| status(&problem))
    }
}

/// The queue of a key that a request names.
fn queue_of(key: &Option<proto::KeyRequest>) -> &str {
    key.as_ref().map_or("", |key| &key.queue)
}

/// Replaces an answer whose result does not fit beside the others of its list.
fn result_omitted() -> Problem {
    let detail = "the message is done, but its result does not fit into this answer with the \
                  others: get the key, or send fewer messages at once";
    Problem::new(Code::TooLarge, detail)
}

async fn send_batch(
    service: Service,
    permit: Permit,
    frame: proto::SendFrame,
) -> Result<proto::SendReply, Problem> {
    if frame.messages.len() > BATCH_MAX {
        let detail = format!("a batch has at most {BATCH_MAX} messages");
        return Err(Problem::new(Code::TooLarge, detail));
    }
    let mut refused = Vec::with_capacity(frame.messages.len());
    let mut sends = Vec::with_capacity(frame.messages.len());
    for message in &frame.messages {
        match shape::send(service.recipe(), permit.queue(), &message.into()) {
            Ok(send) => {
                sends.push(send);
                refused.push(None);
            }
            Err(problem) => refused.push(Some(shape::refused(0, &problem))),
        }
    }
    let answers = service.send(&permit, sends, ANSWER_BYTES_MAX).await?;
    if service::is_no_such_queue(&answers) {
        return Err(Problem::no_such_queue(&permit.queue().queue));
    }
    let mut answers = answers.into_iter().map(|(answer, omitted)| match omitted {
        true => shape::refused(0, &result_omitted()),
        false => shape::answer(0, answer),
    });
    let in_order = refused.into_iter().zip(&frame.messages).map(|(refused, message)| {
        let answer = refused.or_else(|| answers.next());
        let answer = answer.unwrap_or_else(|| shape::refused(0, &Problem::unanswered()));
        proto::Answer { r#ref: message.r#ref, ..answer }
    });
    Ok(proto::SendReply { answers: in_order.collect() })
}

async fn receive(
    service: Service,
    permit: Permit,
    it: proto::ReceiveRequest,
) -> Result<proto::ReceiveReply, Problem> {
    let wait = Duration::from_millis(it.wait_ms);
    let receive_id = it.receive_id.filter(|id| !id.is_empty());
    let it = proto::ReceiveRequest { max: it.max.max(1), receive_id, ..it };
    let receive = shape::receive(permit.queue(), it);
    let received = service.receive_list(&permit, receive, wait).await?;
    let messages = received.messages().iter().map(|it| {
        let lease = service.seal(&permit, it);
        shape::delivery(&permit, received.keys_per_group(), &lease, it)
    });
    let messages = messages.collect();
    received.keep();
    Ok(proto::ReceiveReply { messages })
}

async fn settle(
    service: &Service,
    principal: &Arc<Principal>,
    permit: &Permit,
    it: proto::SettleRequest,
) -> Result<proto::SettleReply, Problem> {
    let emit_to =
        |queue: &str| -> Result<QueueName, Problem> { service.may_emit(principal, queue) };
    let mut refused = Vec::with_capacity(it.items.len());
    let mut opened: Vec<Opened> = Vec::with_capacity(it.items.len());
    for item in it.items {
        match shape::verb(service.recipe(), item.verb, emit_to) {
            Ok(verb) => {
                opened.push(service.open(permit, &item.lease, verb));
                refused.push((item.r#ref, None));
            }
            Err(problem) => refused.push((item.r#ref, Some(problem))),
        }
    }
    let mut settled = service.settle(permit, opened, ANSWER_BYTES_MAX).await?.into_iter();
    let answers = refused.into_iter().map(|(number, refused)| {
        let refused = match refused {
            Some(problem) => problem,
            None => match settled.next() {
                Some((answer, omitted)) => return shape::settled(number, answer, omitted),
                None => Problem::unanswered(),
            },
        };
        shape::unsettled(number, &refused)
    });
    Ok(proto::SettleReply { answers: answers.collect() })
}

async fn claim(
    service: Service,
    permit: Permit,
    it: proto::ClaimRequest,
) -> Result<proto::ClaimReply, Problem> {
    let claim = claims::command(&service, &permit, &(&it).into())?;
    let claimed = service.claim(&permit, claim, Duration::from_millis(it.wait_ms)).await?;
    Ok(shape::claimed(it.r#ref, &permit, claimed))
}

async fn browse(
    service: Service,
    permit: Permit,
    it: proto::BrowseRequest,
) -> Result<proto::BrowseReply, Problem> {
    let place = shape::place(it.state())
        .ok_or_else(|| Problem::invalid("give a state: ready, delayed, leased, parked or dead"))?;
    let cursor = some(&it.cursor).map(|cursor| service.cursor(cursor)).transpose()?;
    let limit = if it.limit == 0 { BROWSE_DEFAULT } else { it.limit as usize };
    let browse = Browse { queue: permit.queue().clone(), place, cursor: None, limit };
    let page = service.browse(&permit, browse, cursor).await?; // Bounded in bytes, as HTTP's.
    Ok(proto::BrowseReply {
        messages: page.messages.into_iter().map(|view| shape::key(None, view)).collect(),
        next: page.next.map(|next| next.to_string()).unwrap_or_default(),
    })
}

async fn redrive(
    service: Service,
    permit: Permit,
    it: proto::RedriveRequest,
) -> Result<proto::RedriveProgress, Problem> {
    use proto::redrive_request::Select as Said;
    let select = match it.select {
        Some(Said::Keys(keys)) => shape::keys(&keys.keys, keys.group.as_deref())?,
        Some(Said::Filter(filter)) => shape::filter(filter),
        Some(Said::All(_)) => Select::All,
        None => return Err(Problem::invalid("give keys, a filter, or all")),
    };
    let (queue, id) = (permit.queue().clone(), it.id.into());
    let redrive = Redrive { queue, id, select, dry_run: it.dry_run, per_s: it.per_s };
    Ok(shape::redrive(&service.redrive(&permit, redrive).await?))
}
