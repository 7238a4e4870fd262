-- Requests the holder's interrupt. KEYS: lease.
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HSET', KEYS[1], 'interrupted', 1)
end
return 0
