-- Found: the effect is committed, whatever the fence: roll back, and settle done with this result.
-- (If the lease was lost meanwhile, the answer is lease_lost, which is fine.) LOCK IN SHARE MODE,
-- because a plain read may not see what was committed after your transaction began. No row: enter
-- again.
SELECT fence, result, result_type FROM hapax_inbox
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND message_key = ? AND message_group = ? AND generation = ?
LOCK IN SHARE MODE
